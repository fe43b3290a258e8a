"""Options are checked when they are given: unknown names, wrong types, and what they mean."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest
import torch
from toys import graph_of, named, plain_cos

import eductor
from eductor.errors import BadOption, EductorError, UnknownName
from eductor.options import SLOT_OPTIONS, Options
from eductor.pipeline import Pipeline, Recorder, Timer


def test_every_option_has_a_default_and_a_reason():
    for field in dataclasses.fields(Options):
        assert field.default is not dataclasses.MISSING
        assert field.metadata["why"]
    assert Options() == Options.of(None) == Options.of({})


def test_an_unknown_option_suggests_and_lists():
    with pytest.raises(UnknownName) as caught:
        Options.of({"profil": "exact"})
    message = str(caught.value)
    assert "unknown option 'profil'. Did you mean 'profile'?" in message
    assert all(field.name in message for field in dataclasses.fields(Options))
    with pytest.raises(UnknownName, match=r"'debugg'. Did you mean 'debug'"):
        eductor.compile(torch.sin, debugg=True)
    with pytest.raises(UnknownName, match="unknown option 3"):
        Options.of({3: 4})


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("profile", "quick", "one of fast, exact"),
        ("profile", None, "one of fast, exact"),
        ("strict", 1, "True or False"),
        ("strict", "yes", "True or False"),
        ("debug", None, "True or False"),
        ("fallback_random", [], "True or False"),
        ("engine", 3, "the name of an engine or a function"),
        ("enable", 3, "names of passes"),
        ("enable", [3], "names of passes"),
        ("disable", [named("mine")], "names of passes"),
        ("repro_dir", 3, "path of a folder"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_option(option, value, says):
    with pytest.raises(BadOption, match=rf"option {option}=.*{says}"):
        Options(**{option: value})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pipeline": 3}, "must be a Pipeline or its text"),
        ({"pipeline": ["remove_noop_ops"]}, "must be a Pipeline or its text"),
        (
            {"instruments": [Recorder]},
            r"Recorder'> is not an Instrument. Give objects of a subclass, such as Timer\(\)",
        ),
        ({"instruments": "timer"}, "'timer' is not an Instrument"),
        ({"passes": [3]}, "3 is not a pass"),
        ({"passes": "remove_noop_ops"}, "'remove_noop_ops' is not a pass"),
        ({"passes": [plain_cos]}, "plain_cos.* is not a pass"),
        ({"joint_custom_pre_pass": [3]}, "3 is not a pass"),
    ],
)
def test_what_only_the_pipeline_can_check_is_checked_before_a_compile(options, says):
    with pytest.raises(EductorError, match=says):
        eductor.compile(torch.sin, **options)
    with pytest.raises(EductorError, match=says):
        eductor.joint_graph_passes(graph_of(), options=options)


@pytest.mark.parametrize("given", [3, "strict", [("strict", True)], {"strict"}])
def test_options_are_a_dictionary(given):
    with pytest.raises(BadOption, match="must be a dictionary"):
        Options.of(given)


def test_one_thing_or_several_or_none():
    timer, mine = Timer(), named("mine")
    assert Options(instruments=timer).instruments == (timer,)
    assert Options(instruments=[timer]).instruments == (timer,)
    assert Options(passes=mine).passes == Options(passes=(mine,)).passes == Options(passes=iter([mine])).passes
    for name in ("passes", "instruments", "enable", "disable", *SLOT_OPTIONS):
        assert getattr(Options(**{name: None}), name) == ()
    assert Options(joint_custom_pre_pass=plain_cos).joint_custom_pre_pass == (plain_cos,)


def test_names_come_one_by_one_or_with_commas():
    assert Options(disable="a, b ,,c").disable == ("a", "b", "c")
    assert Options(disable=["a", " b "]).disable == ("a", "b")
    assert Options(disable="").disable == ()


def test_options_do_not_change_after_they_are_made():
    options = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.strict = True  # type: ignore[misc]


def test_a_folder_may_be_a_path(tmp_path: Path):
    assert Options(repro_dir=tmp_path).repro_dir == tmp_path


def test_unknown_names_are_errors_before_a_compile():
    with pytest.raises(UnknownName, match="Did you mean 'remove_noop_ops'"):
        eductor.compile(torch.sin, disable="remove_noop")
    with pytest.raises(UnknownName, match=r"unknown engine 'atem'. Did you mean 'aten'"):
        eductor.compile(torch.sin, engine="atem")


def test_add_and_remove_are_options_by_other_names():
    recorder = Recorder()
    module = graph_of(lambda x: torch.cat((x, x), axis=0), stage="pre_grad")
    eductor.pre_grad_passes(module, remove_passes="normalize_node_kwargs_pass", options={"instruments": recorder})
    assert [r.name for r in recorder.records] == [
        s.name for s in Pipeline.default().stage("pre_grad") if not s.is_slot and s.name != "normalize_node_kwargs_pass"
    ]
    with pytest.raises(UnknownName, match="normalize_node_kwargs"):
        eductor.pre_grad_passes(module, add_passes=["normalize_node_kwargs"])


def test_an_error_survives_pickling():
    """Test runners and process pools hand exceptions from one process to another."""
    error = UnknownName("pass", "a", ["b"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (UnknownName, str(error))
