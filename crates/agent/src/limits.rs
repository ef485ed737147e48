//! Every bound of this room, in one list.
//!
//! A bound must never be exceeded silently: what is cut is counted, and whoever reads the rest
//! (model or person) is told.

/// Bytes of configuration read from standard input; more is refused as `AGENT-001`.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;

/// Characters of one event's text; the rest is cut and counted in the text.
pub const EVENT_TEXT_CHARS_MAX: usize = 2_000;

/// Characters of the final report; the rest is cut and counted in the text.
pub const REPORT_CHARS_MAX: usize = 7_900;

/// Bytes of one streamed model answer on the wire; past it the answer is dropped and the attempt fails.
pub const STREAM_BYTES_MAX: usize = 32 << 20;

/// Bytes read of a provider's error body; the rest is not read.
pub const ERROR_BODY_BYTES_MAX: usize = 64 << 10;

/// Characters shown of a provider's error message; the rest is cut.
pub const ERROR_MESSAGE_CHARS_MAX: usize = 1_000;

/// Milliseconds until a connection to the model door stands; then the attempt fails.
pub const CONNECT_TIMEOUT_MS: u64 = 10_000;

/// Milliseconds without a byte from the model, headers included; then the attempt fails.
pub const MODEL_IDLE_TIMEOUT_MS: u64 = 300_000;

/// Milliseconds for one whole model answer, however busy; then the attempt fails.
pub const MODEL_TOTAL_TIMEOUT_MS: u64 = 1_800_000;

/// Milliseconds spent reading what follows a complete answer, so that the gateway sees the usage;
/// then the connection is closed.
pub const MODEL_TAIL_TIMEOUT_MS: u64 = 2_000;

/// Attempts of one model call that may fail (connect, 5xx, cut or hung stream) before the run ends
/// with `AGENT-004`.
pub const MODEL_ATTEMPTS_MAX: u32 = 6;

/// Milliseconds one model call may spend in waits that were asked for (429, 529, `Retry-After`),
/// apart from failures; a wait that does not fit is not begun and the run ends with `AGENT-005`.
pub const RATE_LIMIT_WAIT_MS_MAX: u64 = 1_200_000;

/// Milliseconds of the first wait between attempts; each further wait doubles.
pub const BACKOFF_FIRST_MS: u64 = 1_000;

/// Milliseconds of the longest wait between attempts that no `Retry-After` asked for.
pub const BACKOFF_MS_MAX: u64 = 30_000;

/// Output tokens asked for where a dialect demands a number (Anthropic). A model that allows fewer
/// says so and is asked again with [`OUTPUT_TOKENS_SMALL`].
pub const OUTPUT_TOKENS: u64 = 16_384;

/// Output tokens asked for after a model refused [`OUTPUT_TOKENS`].
pub const OUTPUT_TOKENS_SMALL: u64 = 4_096;

/// Bytes of conversation at which the oldest tool results, then the long arguments of old calls, are
/// shortened, about 100,000 tokens. The model is told in each place that was shortened.
pub const CONTEXT_BYTES_MAX: usize = 400_000;

/// Bytes below which a provider's "too long" no longer halves the bound; the run ends with `AGENT-009`.
pub const CONTEXT_BYTES_MIN: usize = 24_000;

/// Bytes that remain of an old tool result, or of an old call's long argument, which was shortened;
/// texts of up to twice as many stay whole.
pub const SHORTENED_RESULT_BYTES: usize = 400;

/// Bytes of conversation that are never sent, shortened or not; the run ends with `AGENT-009`.
pub const CONTEXT_BYTES_HARD: usize = 6 << 20;

/// Tool calls carried out of one turn; the others are answered with an error.
pub const CALLS_PER_TURN_MAX: usize = 32;

/// Tool calls taken from one stream at all; past it the answer is dropped and the attempt fails.
pub const CALLS_PER_STREAM_MAX: usize = 1_000;

/// Turns in a row that were cut, malformed or empty before the run ends with `AGENT-010`.
pub const FAULTY_TURNS_MAX: u32 = 4;

/// Calls in a row that repeated an earlier call with an earlier result before the model is told.
pub const NO_PROGRESS_WARN: u32 = 3;

/// Calls in a row that repeated an earlier call with an earlier result before the run ends with
/// `AGENT-007`.
pub const NO_PROGRESS_STOP: u32 = 8;

/// Remaining steps at which the model is told to wrap up.
pub const STEPS_LEFT_WARNING: u32 = 5;

/// Bytes of malformed tool arguments quoted back to the model.
pub const BAD_ARGUMENTS_QUOTED_BYTES: usize = 300;

/// Bytes of any tool's answer, whatever its own bounds; the middle is cut and counted.
pub const ANSWER_BYTES_MAX: usize = 100 << 10;

/// Characters shown of what is wrong with arguments; the rest is cut and counted.
pub const ARGUMENT_ERROR_CHARS_MAX: usize = 500;

/// Bytes of a path; a longer one is refused.
pub const PATH_BYTES_MAX: usize = 4_096;

/// Bytes kept from the start of a command's output; the middle is cut and counted.
pub const SHELL_HEAD_BYTES: usize = 16 << 10;

/// Bytes kept from the end of a command's output; the middle is cut and counted.
pub const SHELL_TAIL_BYTES: usize = 24 << 10;

/// Seconds a command may run when the model names no time; then its process group is ended.
pub const SHELL_TIMEOUT_S_DEFAULT: u64 = 120;

/// Most seconds a model may give a command; a larger wish is lowered to it, and said.
pub const SHELL_TIMEOUT_S_MAX: u64 = 1_800;

/// Milliseconds between the polite and the final signal to a command that ran out of time.
pub const SHELL_GRACE_MS: u64 = 2_000;

/// Milliseconds spent draining the pipe after a command ended while something still holds it open;
/// then the pipe is left, and said.
pub const SHELL_DRAIN_MS: u64 = 1_000;

/// Bytes of one shell command; a longer one is refused.
pub const SHELL_COMMAND_BYTES_MAX: usize = 100 << 10;

/// Lines that `read_file` shows when the model names no number.
pub const READ_LINES_DEFAULT: usize = 1_000;

/// Bytes that `read_file` shows; the rest is cut, with the line to go on at.
pub const READ_BYTES_MAX: usize = 48 << 10;

/// Bytes shown of one line; the rest of the line is cut and counted.
pub const LINE_BYTES_MAX: usize = 2_000;

/// Bytes of a file that `read_file` looks through; past it the model is sent to the shell.
pub const READ_SCAN_BYTES_MAX: u64 = 64 << 20;

/// Bytes that `write_file` takes; more is refused.
pub const WRITE_BYTES_MAX: usize = 4 << 20;

/// Bytes of a file that `edit_file` loads; a larger file is refused.
pub const EDIT_FILE_BYTES_MAX: u64 = 8 << 20;

/// Entries that `list_files` shows; the rest is counted.
pub const LIST_ENTRIES_MAX: usize = 1_000;

/// Entries that `list_files` looks at; past it the listing says that it is incomplete.
pub const LIST_SCAN_MAX: usize = 100_000;

/// Bytes read from a helper program (`git ls-files`, `rg`, `grep`); past it the program is ended and
/// the answer says that it is incomplete.
pub const HELPER_OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Seconds a helper program may run; then it is ended and the answer says so.
pub const HELPER_TIMEOUT_S: u64 = 60;

/// Matching lines that `search` shows; past it the search ends and says so.
pub const SEARCH_LINES_MAX: usize = 200;

/// Bytes shown of one matching line; the rest of the line is cut and counted.
pub const SEARCH_LINE_BYTES_MAX: usize = 400;

/// Steps of a plan; more are refused.
pub const PLAN_STEPS_MAX: usize = 50;

/// Milliseconds in which the shell host has to start a command, or to end one. Past them the call
/// fails and says so.
pub const SHELL_HOST_ANSWER_MS: u64 = 10_000;

/// Bytes of one request to the shell host. A longer one is dropped and its call fails.
pub const HOSTED_REQUEST_BYTES_MAX: usize = 4 << 20;

/// Commands that the shell host runs at once. A further one is dropped and its call fails.
pub const HOSTED_COMMANDS_MAX: usize = 64;
