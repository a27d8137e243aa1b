"""Which sensors count."""

from farm.devices.health.probe.thermal import SensorPolicy, counted, one_temperature
from farm.model.health import Health, SensorGroup, Temperature, ThrottleStatus

CPU = Temperature("cpu-0", 61.0, SensorGroup.CPU, "thermal_zone1")
HAL_CPU = Temperature("CPU", 55.0, SensorGroup.CPU, "thermalservice")
SKIN = Temperature("SKIN", 39.0, SensorGroup.SKIN, "thermalservice")
QUIET = Temperature("quiet-therm", 37.0, SensorGroup.OTHER, "thermal_zone7")
BATTERY = Temperature("battery", 33.0, SensorGroup.BATTERY, "battery")
HEALTH = Health(temperatures=(CPU, HAL_CPU, SKIN, QUIET, BATTERY), throttle=ThrottleStatus.SEVERE, throttled_by="SKIN")


def test_without_a_policy_all_count():
    assert counted(HEALTH, SensorPolicy()) is HEALTH


def test_ignored_sensors_are_dropped_with_what_they_claimed():
    found = counted(HEALTH, SensorPolicy(ignore=("SK*", "cpu-0")))
    assert found.temperatures == (HAL_CPU, QUIET, BATTERY)
    assert (found.throttle, found.throttled_by) == (None, "")
    assert [(each.sensor, each.raw, each.source) for each in found.dropped] == [
        ("cpu-0", "61 °C", "thermal_zone1"),
        ("SKIN", "39 °C", "thermalservice"),
    ]


def test_one_sensor_is_the_skin():
    found = counted(HEALTH, SensorPolicy(skin="quiet-therm"))
    assert [each.sensor for each in found.temperatures if each.group is SensorGroup.SKIN] == ["quiet-therm"]
    assert found.throttle is ThrottleStatus.SEVERE


def test_the_one_temperature_is_the_thermal_services_then_the_zones_then_the_batterys():
    assert one_temperature(HEALTH) == HAL_CPU
    assert one_temperature(Health(temperatures=(QUIET, CPU, BATTERY))) == CPU
    assert one_temperature(Health(temperatures=(BATTERY,))) == BATTERY
    assert one_temperature(Health()) is None
