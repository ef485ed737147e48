//! Every bound of the guest, each with its unit and what happens at it.

use std::time::Duration;

/// Connections to the proxy port that are open at once. Further ones wait in the kernel's backlog.
pub(crate) const PROXY_CONNECTIONS: usize = 128;

/// Connections to the model port that are open at once. Further ones wait in the kernel's backlog.
pub(crate) const MODEL_CONNECTIONS: usize = 48;

/// Bytes copied at a time between a door and its stream, per direction.
pub(crate) const DOOR_BUFFER: usize = 128 << 10;

/// Bytes that the kernel holds in each of the link's two pipes. Past them the writer waits.
pub(crate) const PIPE_BYTES: usize = 1 << 20;

/// How long a connection is kept after the host has ended its half: time for the agent to end its
/// own. Then it is cut, so that forgotten connections do not fill the door.
pub(crate) const AFTER_ANSWER: Duration = Duration::from_secs(30);

/// Within that, how long the agent may send nothing. Then it is cut.
pub(crate) const AFTER_ANSWER_IDLE: Duration = Duration::from_secs(2);

/// The same once less than half of the door's connections are free.
pub(crate) const AFTER_ANSWER_CROWDED: Duration = Duration::from_millis(100);

/// How long the door may take to answer the wall test. Then it counts as no answer, which stops the
/// run.
pub(crate) const WALL_DOOR: Duration = Duration::from_secs(5);

/// How long the wall test waits for answers from outside where there is a way out at all. Where there
/// is none nothing is waited for.
pub(crate) const WALL_OUTSIDE: Duration = Duration::from_millis(300);

/// Open ways that the wall test names. Further ones are dropped: one is enough.
pub(crate) const WALL_OPEN: usize = 32;

/// Resolvers of `/etc/resolv.conf` that the wall test tries. Further ones are not tried.
pub(crate) const WALL_RESOLVERS: usize = 8;

/// Bytes read at a time from the agent's output. Decoded and escaped it stays far under a frame.
pub(crate) const OUTPUT_CHUNK: usize = 16 << 10;

/// Bytes of one event line of the built-in agent. A longer line is relayed as ordinary output.
pub(crate) const EVENT_LINE: usize = 256 << 10;

/// Characters of one event's text, as in the agent's own bound with its note of a cut. The rest is
/// cut.
pub(crate) const EVENT_CHARS: usize = 2_100;

/// Characters of an event's kind. The rest is cut.
pub(crate) const EVENT_KIND_CHARS: usize = 40;

/// Characters of the agent's last words. Of more, a report keeps its beginning and output its end.
pub(crate) const REPORT_CHARS: usize = 8_000;

/// Characters of an error message for the host. The rest is cut.
pub(crate) const MESSAGE_CHARS: usize = 2_000;

/// Messages to the host that wait to be written. At the limit their senders wait.
pub(crate) const UP_QUEUE: usize = 64;

/// How long the agent has between SIGTERM and SIGKILL.
pub(crate) const TERM_GRACE: Duration = Duration::from_millis(1_500);

/// The same once the host is gone: an engine may end everything a few seconds later, and the work is
/// still to be committed.
pub(crate) const TERM_GRACE_GONE: Duration = Duration::from_secs(1);

/// How long the shell host may take to say that it serves the agent. Then the run fails.
pub(crate) const MEET_SHELL_HOST: Duration = Duration::from_secs(10);

/// How long the output of a dead agent is still read. Then it is cut off.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

/// How long the processes of the sandbox are hunted. Those left (unkillable) are left.
pub(crate) const KILL: Duration = Duration::from_secs(5);

/// How long one git call of import or collect may take, unless it moves objects. Then it is killed.
pub(crate) const GIT_CALL: Duration = Duration::from_secs(120);

/// How long taking the agent's leftovers into the index may take. Then they are not committed.
pub(crate) const GIT_ADD: Duration = Duration::from_secs(5 * 60);

/// Bytes of one file that the agent left uncommitted: what the host takes as well. A larger one is not
/// taken and named.
pub(crate) const LEFTOVER_FILE: u64 = 1 << 30;

/// Entries of the work tree, and of the repository's own directory, that are looked at before
/// leftovers are taken. What lies beyond is taken without a look, or fails.
pub(crate) const SURVEY_ENTRIES: usize = 2_000_000;

/// Places in the work tree that are left out one by one. With more the rest is taken with everything
/// else, or fails.
pub(crate) const SURVEY_ODD: usize = 1_000;

/// Commits that only reflogs, stash and worktrees know and that are packed. With more the rest is
/// named as not taken.
pub(crate) const LOST_REFS: usize = 50;

/// Entries of a reflog that are read, newest first. Older ones are not looked at.
pub(crate) const REFLOG_ENTRIES: usize = 2_000;

/// How long a git call that moves objects may take. Then it is killed.
pub(crate) const GIT_LONG_CALL: Duration = Duration::from_secs(15 * 60);

/// How long leftovers may take to be committed once the host is gone. Then the guest ends anyway.
pub(crate) const ORPHAN_GRACE: Duration = Duration::from_secs(20);

/// How long the guest waits for the host to close the link after a failure. Then it ends.
pub(crate) const FAILED_LINGER: Duration = Duration::from_secs(60);

/// Bytes of one git call's standard output that are read. A longer one fails the call.
pub(crate) const GIT_STDOUT: usize = 8 << 20;

/// Bytes of one git call's standard error that are kept. The rest is dropped.
pub(crate) const GIT_STDERR: usize = 4 << 10;

/// Refs in a manifest. Refs over it are named by the bundle alone.
pub(crate) const MANIFEST_REFS: usize = 2_000;

/// Bytes of names and ids of the refs in a manifest, so that it fits into one message. Refs over it
/// are named by the bundle alone.
pub(crate) const MANIFEST_BYTES: usize = 400 << 10;

/// How much sooner the kernel picks the agent than the supervisor when memory runs out, as
/// `oom_score_adj` (thousandths of all memory).
pub(crate) const AGENT_OOM_SCORE: &str = "500";

/// Threads of the supervisor beside its workers for what blocks (files, the wall test). All are made
/// before an agent starts; what finds none waits for one.
pub(crate) const BLOCKING_THREADS: usize = 4;

/// How long those threads may take to be made. Then the supervisor goes on with those it has.
pub(crate) const THREADS_MADE: Duration = Duration::from_secs(5);

/// How long such a thread is kept without work: longer than any run, so that no later one takes its
/// place.
pub(crate) const THREAD_KEPT: Duration = Duration::from_secs(365 * 86_400);

/// Threads whose scheduling the agent cannot change: the supervisor's and the sandbox's first process.
/// With more the agent is not started.
pub(crate) const UNTOUCHABLE: usize = 16;

/// Lines of the guest's own log on standard error. The rest is dropped.
pub(crate) const LOG_LINES: u32 = 500;

/// Characters of one such line. The rest is cut.
pub(crate) const LOG_CHARS: usize = 500;

/// Entries of one list of the probe. The rest is dropped; a list that long is no good sign anyway.
pub(crate) const PROBE_ENTRIES: usize = 256;

/// Bytes of one file under `/proc` or `/sys` that the probe or the process hunt reads.
pub(crate) const PROC_FILE: u64 = 1 << 20;
