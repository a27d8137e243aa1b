"""The web page of an echo: each time that it was said."""

from farm.web.plots import KindPage, Line, Panel, Plot, Table


def plots(source):
    times = source.shown["spec"]["times"]
    numbers = [float(number + 1) for number in range(times)]
    return [
        Plot(
            id="echo", title="Echo", summary=f"Said {times} times.", x_label="time", span=(0.0, times + 1.0),
            panels=[Panel(label="said", x=numbers, lines=[Line(name="said", values=numbers)])],
            table=Table(head=("time",), rows=[(str(number),) for number in numbers]),
        )
    ]  # fmt: skip


PAGE = KindPage(plots=plots)
