"""The recorded facts about the machine and its software, and those that are never recorded."""

from gpas_cli.worker.environment import _VARIABLES, environment


def test_every_variable_of_the_list_is_recorded_and_no_other() -> None:
    others = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret", "SLURM_JWT": "s3cret", "HOME": "/s3cret"}
    facts = environment({**{name: f"value of {name}" for name in _VARIABLES}, **others})
    assert "s3cret" not in str(facts)
    recorded = {name: text for name, text in facts.items() if text.startswith("value of ")}
    assert recorded == {name.lower(): f"value of {name}" for name in _VARIABLES}
    assert not {name.lower() for name in others} & facts.keys()


def test_variables_that_are_not_set_are_left_out() -> None:
    facts = environment({"CUDA_VISIBLE_DEVICES": ""})
    assert not {name.lower() for name in _VARIABLES} & facts.keys()
    assert {"python", "platform", "hostname", "gpas", "cores"} <= facts.keys()
