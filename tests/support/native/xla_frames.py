"""Calls a library's handlers as XLA does, without JAX: its frame of a call, by ctypes."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p


class StreamGet(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("context", c_void_p), ("stream", c_void_p),
    ]  # fmt: skip


class ErrorCreate(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("message", c_char_p), ("code", c_int),
    ]  # fmt: skip


CREATE = ctypes.CFUNCTYPE(c_void_p, POINTER(ErrorCreate))
GET_STREAM = ctypes.CFUNCTYPE(c_void_p, POINTER(StreamGet))


class Api(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("version", c_int64 * 3),
        ("internal", c_void_p), ("error_create", CREATE), ("error_message", c_void_p),
        ("error_destroy", c_void_p), ("handler_register", c_void_p), ("stream_get", GET_STREAM),
    ]  # fmt: skip


class Buffer(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("dtype", c_int), ("data", c_void_p),
        ("rank", c_int64), ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class Many(ctypes.Structure):
    """Of arguments and of results."""

    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("items", POINTER(c_void_p)),
    ]  # fmt: skip


class Text(ctypes.Structure):
    _fields_ = [("data", c_char_p), ("length", c_size_t)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


class Attributes(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("count", c_int64), ("types", POINTER(c_int)),
        ("names", POINTER(c_void_p)), ("values", POINTER(c_void_p)),
    ]  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("extensions", c_void_p), ("api", POINTER(Api)), ("context", c_void_p),
        ("stage", c_int), ("inputs", Many), ("results", Many), ("attributes", Attributes),
    ]  # fmt: skip


class Handlers(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("cuda", c_void_p), ("rocm", c_void_p), ("cpu", c_void_p)]


SCALAR, F32 = 3, 11


def call(handler, inputs, results, stream):
    """The error's text, or None; arrays are fp32 tensors of torch, all of them present."""
    errors = []

    def create(arguments):
        errors.append(arguments.contents.message.decode())
        return 1

    def get_stream(arguments):
        arguments.contents.stream = stream
        return 0

    present = c_int64((1 << len(inputs) + len(results)) - 1)
    mask = Scalar(5, ctypes.cast(ctypes.pointer(present), c_void_p))
    name = Text(b"present", 7)
    attributes = Attributes(0, None, 1, (c_int * 1)(SCALAR), _items([name]), _items([mask]))
    api = Api(error_create=CREATE(create), stream_get=GET_STREAM(get_stream))
    kept = [_buffer(tensor) for tensor in (*inputs, *results)]
    many = [Many(0, None, len(part), None, _items(part)) for part in (
        kept[: len(inputs)], kept[len(inputs) :],
    )]  # fmt: skip
    frame = Frame(api=ctypes.pointer(api), stage=3, attributes=attributes)
    frame.inputs, frame.results = many
    failed = ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))(handler)(ctypes.byref(frame))
    assert bool(failed) == bool(errors)
    return errors[0] if errors else None


def _items(structures):
    return (c_void_p * len(structures))(*(ctypes.addressof(one) for one in structures))


def _buffer(tensor):
    dims = (c_int64 * tensor.dim())(*tensor.shape)
    return Buffer(0, None, F32, tensor.data_ptr(), tensor.dim(), dims)
