"""Rules D7 and P4: an error is recorded so that its replay raises an equal one, without importing anything."""

import json
import sys
import types
from pathlib import Path

import pytest
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, ValidationError
from django.db import IntegrityError
from django.utils.translation import gettext_lazy

from django_finoflow import failures, payloads
from django_finoflow.exceptions import GateRejected, NonRetryable, StepFailed, StepTimeout


class PaymentError(Exception):
    class Declined(Exception):
        pass


class WithCode(Exception):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code


class TwoNeeded(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Rephrasing(Exception):
    def __str__(self):
        return f"rephrased at {id(self)}"


class Adding(Exception):
    def __init__(self, *args):
        super().__init__(*args, "more")


class Growing(Adding):
    def __str__(self):
        return "always the same"


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class BrokenPickling(Exception):
    def __reduce__(self):
        raise RuntimeError("no pickling")


class Exploding(Exception):
    armed = False

    def __init__(self, *args):
        if self.armed:
            raise KeyboardInterrupt if args == ("stop",) else RuntimeError("not again")
        super().__init__(*args)


class Stop(BaseException):
    pass


def raised(action):
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def throw(error):
    raise error


def replayed(error):
    """What a replay raises: the record has been through the database's JSON."""
    return failures.rebuild(payloads.roundtrip(failures.describe(error)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError(),
        ValueError("a", 1, None),
        KeyError("x"),
        KeyError(("a", 1)),
        ZeroDivisionError("division by zero"),
        PaymentError("declined", 5),
        PaymentError.Declined("card"),
        WithCode("x"),
        NonRetryable("stop"),
        StepTimeout("late"),
        StepFailed("shop.Gone", "x"),
        GateRejected("no", {"by": "ann"}),
        IntegrityError("UNIQUE constraint failed"),
        ObjectDoesNotExist("none"),
        PermissionDenied(),
        ValidationError("bad"),
        raised(lambda: Path("/does/not/exist").read_text()),
        raised(lambda: json.loads("{")),
        raised(lambda: "é".encode("ascii")),
        raised(lambda: b"\xff".decode()),
        raised(lambda: {}["x"]),
        raised(lambda: int("x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_d7_replay_raises_an_equal_error_of_the_same_class(error):
    back = replayed(error)
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)


def test_d7_what_was_set_on_the_error_comes_back_as_far_as_it_can_be_stored():
    error = WithCode("x", 7)
    error.response, error.body = object(), b"no"
    error.add_note("while paying")
    back = replayed(error)
    assert (back.code, back.body, back.__notes__) == (7, b"no", ["while paying"])
    assert not hasattr(back, "response")


def test_d7_an_attribute_set_to_none_stays_none():
    error = WithCode("x", 7)
    error.code = None
    assert replayed(error).code is None


def test_d7_the_first_time_raises_what_replay_would():
    for error in (WithCode("x", 7), TwoNeeded("x", 1), BrokenText("x"), ValueError("a\0b"), ValueError("x" * 10**6)):
        record = failures.describe(error)
        first, replay = failures.rebuild(record), failures.rebuild(payloads.loads(payloads.dumps(record)))
        assert (type(first), first.args, str(first)) == (type(replay), replay.args, str(replay))


def local_class():
    class Local(Exception):
        pass

    return Local


@pytest.mark.parametrize(
    "error",
    [
        TwoNeeded("x", 1),
        Rephrasing("x"),
        Adding("x"),
        Growing("x"),
        ValueError(object()),
        local_class()("x"),
        ExceptionGroup("several", [ValueError("x")]),
        KeyboardInterrupt("x"),
        SystemExit(3),
        GeneratorExit("x"),
        Stop("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_d7_an_error_that_cannot_be_made_again_keeps_its_type_and_message(error):
    back = replayed(error)
    assert type(back) is StepFailed
    assert back.type.endswith(type(error).__qualname__)
    assert back.message == str(error)


def test_d7_the_record_names_the_type_as_one_reads_it():
    assert failures.describe(ValueError("x"))["type"] == "ValueError"
    assert failures.describe(PaymentError.Declined("x"))["type"] == f"{__name__}.PaymentError.Declined"
    assert failures.describe(IntegrityError("x"))["type"] == "django.db.utils.IntegrityError"


def test_d7_the_record_holds_the_traceback_with_its_cause():
    def inner():
        raise KeyError("deep")

    def outer():
        try:
            inner()
        except KeyError as error:
            raise ValueError("on top") from error

    text = failures.describe(raised(outer))["traceback"]
    assert "in inner" in text
    assert text.rstrip().endswith("ValueError: on top")
    assert "KeyError: 'deep'" in text


def test_d7_a_lazy_message_is_recorded_as_text():
    back = replayed(ValidationError(gettext_lazy("run"), code="x"))
    assert type(back) is ValidationError
    assert back.messages == ["run"]
    assert back.code == "x"


# -- describe never raises, and always fits ----------------------------------------------------------------------------


def test_d7_an_error_whose_text_is_broken_is_recorded_all_the_same():
    record = failures.describe(raised(lambda: throw(BrokenText("x"))))
    assert record["type"] == f"{__name__}.BrokenText"
    assert "BrokenText" in record["message"]
    assert "throw" in record["traceback"]
    assert type(failures.rebuild(record)) is StepFailed
    assert type(replayed(BrokenPickling("x"))) is BrokenPickling


def test_d7_text_that_no_database_holds_is_repaired():
    back = replayed(ValueError("a\0b \ud800 é", "\udfff"))
    assert back.args == ("a\ufffdb ? é", "?")
    assert type(back) is ValueError
    assert str(replayed(StepTimeout("x\0"))) == "x\ufffd"
    assert type(replayed(KeyError("x" * 10**6))) is KeyError


@pytest.mark.parametrize("limit", [1_000_000, 20_000, 3_000, 700])
def test_d7_a_record_always_fits_its_column(limit, settings):
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": limit}

    def deep(levels):
        return deep(levels - 1) if levels else throw(ValueError("é😀\x01" * 500_000, b"x" * 10**6))

    for error in (raised(lambda: deep(200)), raised(lambda: throw(WithCode("x" * 10**6, "y" * 10**6)))):
        record = failures.describe(error)
        assert len(payloads.dumps(record).encode()) <= limit
        assert record["type"].endswith(type(error).__name__)
        assert record["message"]


def test_d7_a_long_message_is_cut_and_the_class_kept():
    error = raised(lambda: throw(PaymentError("start " + "x" * 10**6 + " end")))
    record = failures.describe(error)
    back = failures.rebuild(record)
    assert type(back) is PaymentError
    assert str(back) == record["message"]
    assert len(str(back)) < 20_000
    assert str(back).startswith("start ")
    assert str(back).endswith(" end")
    assert "characters left out" in str(back)
    assert len(record["traceback"]) < 20_000


def test_d7_arguments_that_would_crowd_out_the_message_are_left_out(settings):
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": 20_000}
    record = failures.describe(raised(lambda: throw(ValueError(b"x" * 14_900))))
    assert "args" not in record
    assert record["message"].startswith("b'xxx")
    assert record["traceback"]


def test_d7_even_a_column_for_nothing_gets_a_record(settings):
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": 0}
    assert failures.describe(ValueError("x")) == {"type": "ValueError", "message": "", "traceback": ""}


def test_d7_an_endless_recursion_is_recorded_shortly():
    def endless():
        return endless()

    record = failures.describe(raised(endless))
    assert record["type"] == "RecursionError"
    assert len(record["traceback"]) < 20_000


# -- rebuild never raises, and imports nothing -------------------------------------------------------------------------


def test_p4_a_class_is_looked_up_among_loaded_modules_only():
    assert "wsgiref.validate" not in sys.modules
    back = failures.rebuild({"type": "wsgiref.validate.WSGIWarning", "message": "x", "args": ["x"]})
    assert type(back) is StepFailed
    assert "wsgiref.validate" not in sys.modules


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "subprocess.Popen",
        "eval",
        "print",
        "KeyboardInterrupt",
        "SystemExit",
        "BaseException",
        "BaseExceptionGroup",
        f"{__name__}.Stop",
        f"{__name__}.throw",
        f"{__name__}.sys.modules",
        f"{__name__}.StepFailed",
        f"{__name__}.PaymentError.__class__",
        f"{__name__}.PaymentError.__init__.__globals__",
        "django_finoflow",
        "",
        ".",
        "..",
        "builtins.ValueError",
    ],
)
def test_p4_nothing_but_an_exception_class_by_its_own_name_is_called(name):
    back = failures.rebuild({"type": name, "message": "echo", "args": ["echo"]})
    assert type(back) is StepFailed
    assert (back.type, back.message) == (name, "echo")


def test_p4_looking_up_a_class_does_not_run_a_modules_getattr(monkeypatch):
    module = types.ModuleType("lazy_module")
    asked = []
    module.__getattr__ = lambda name: asked.append(name)
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    assert type(failures.rebuild({"type": "lazy_module.Error", "message": "x", "args": []})) is StepFailed
    assert asked == []


@pytest.mark.parametrize(
    "record",
    [
        None,
        5,
        [],
        {},
        {"type": "ValueError"},
        {"type": "ValueError", "message": "x"},
        {"type": None, "message": None, "args": None},
        {"type": "ValueError", "message": "x", "args": 5},
        {"type": "ValueError", "message": "x", "args": ["y"]},
        {"type": "ValueError", "message": "x", "args": ["x"], "attributes": 5},
        {"type": "UnicodeDecodeError", "message": "x", "args": ["x"]},
        {"type": ["ValueError"], "message": {}, "args": {}},
    ],
)
def test_d7_whatever_the_record_something_can_be_raised(record):
    assert type(failures.rebuild(record)) is StepFailed


def test_d7_a_class_that_makes_another_becomes_step_failed():
    back = failures.rebuild({"type": "OSError", "message": "[Errno 2] gone", "args": [2, "gone"]})
    assert type(back) is StepFailed


def test_d7_a_class_that_fails_when_called_becomes_step_failed(monkeypatch):
    record = failures.describe(Exploding("x"))
    monkeypatch.setattr(Exploding, "armed", True)
    assert type(failures.rebuild(record)) is StepFailed
