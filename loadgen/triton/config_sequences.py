"""The part of a Triton configuration that keeps sequences of requests together.  Pure, as `config` is."""

from dataclasses import dataclass

from loadgen.triton.config_enums import ControlKind, DataType


@dataclass(frozen=True, slots=True)
class Direct:
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class Oldest:
    max_candidate_sequences: int = 0
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    kind: ControlKind = ControlKind.CONTROL_SEQUENCE_START
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: DataType = DataType.TYPE_INVALID


@dataclass(frozen=True, slots=True)
class ControlInput:
    name: str = ""
    control: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class InitialState:
    data_type: DataType = DataType.TYPE_INVALID
    dims: tuple[int, ...] = ()
    zero_data: bool = False
    data_file: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class State:
    input_name: str = ""
    output_name: str = ""
    data_type: DataType = DataType.TYPE_INVALID
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    direct: Direct | None = None
    oldest: Oldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[State, ...] = ()
    iterative_sequence: bool = False
