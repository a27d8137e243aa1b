"""Examples below `--help` and in the manual page, by command. Each line parses (tests/unit/cli/test_examples.py)."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "bench": (
        "farm bench mobilenet.onnx --on android",
        "farm bench net.onnx --on soc=sm8550 --devices 1 --half-width 0.005",
        "farm bench tuned.farm.tar --on adreno-740 --require trusted --json",
    ),
    "compare": (
        "farm compare net.onnx tuned.farm.tar --on soc=sm8550",
        "farm compare net.onnx --on android --bundle stable --bundle-b nightly",
    ),
    "tune": (
        "farm tune net.onnx --on soc=sm8550 --trials 1000 --devices 4 -o net.farm.tar",
        "farm tune net.onnx --on host --trials 200 --plot curve.svg",
    ),
    "run": (
        "farm run net.onnx --on android --input photo.npz --top-k 5 --labels imagenet.txt",
        "farm run net.onnx --on host -o outputs.npz",
    ),
    "compile": (
        "farm compile net.onnx --target rpi4 -o net.rpi4.farm.tar",
        "farm compile net.onnx --on soc=sm8550 --target adreno",
    ),
    "history": ("farm history net.onnx --plot", "farm history net.onnx --device emerald-9 --json"),
    "submit": ("farm submit night.toml", "farm submit night.toml --wait"),
    "shell": (
        "farm shell --on android -- getprop ro.build.fingerprint",
        "farm shell --on soc=sm8550 --devices all -- uptime",
    ),
    "watch": (
        "farm watch j3f2               a picture of one job until it ends",
        "farm watch a71c --json        an event a line, of every job of an array",
    ),
    "logs": ("farm logs -f j3f2", "farm logs j3f2 --attempt 1"),
    "explain": ("farm explain device emerald-9", "farm explain job j3f2", "farm explain key adreno-740"),
    "top": (
        "farm top                      until q or Ctrl-C",
        "farm top --once               the same picture, once",
        "farm top --once --json        for scripts",
    ),
    "status": ("farm status", "farm status --json"),
    "usage": ("farm usage --since 7d --by device",),
    "job list": ("farm job list --state running --state queued", "farm job list --user ann --limit 100 --json"),
    "job cancel": ("farm job cancel j3f2", "farm job cancel --mine --state queued"),
    "device adopt": ("farm device adopt emerald-9 --pool lab --wait",),
    "device set": ("farm device set emerald-9 --label rack=3 --label owner=ann",),
    "lease acquire": ("farm lease acquire --on gpu=adreno-740 --for 30m",),
    "lease run": ("farm lease run --on android -- python my_tvm_script.py",),
    "reservation add": ("farm reservation add --on soc=sm8550 --user ann --from 14:00 --for 2h",),
    "bundle add": ("farm bundle add ./runtime-arm64 --name nightly",),
    "alias set": ("farm alias set fast soc=sm8550",),
    "completions": (
        "farm completions bash > ~/.local/share/bash-completion/completions/farm",
        "farm completions zsh > ~/.zfunc/_farm",
        "farm completions fish > ~/.config/fish/completions/farm.fish",
    ),
    "man": ("farm man", "farm man bench"),
    "demo": ("farm demo --stay", "farm demo --phones galaxy-s9,huawei-mate-20"),
}
