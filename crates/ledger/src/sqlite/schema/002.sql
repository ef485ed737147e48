-- Format 2: tasks above runs, approvals, triggers, events with ids of their own, compaction, blobs.
-- Never edited after release: a change is a new file.

ALTER TABLE meta ADD COLUMN readable_by INTEGER NOT NULL DEFAULT 2;
ALTER TABLE meta ADD COLUMN compacted_through INTEGER NOT NULL DEFAULT 0 CHECK (compacted_through >= 0);

CREATE TABLE projects (
    ordinal       INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE CHECK (id GLOB 'prj-????????'),
    name          TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    checkout      TEXT    NOT NULL,
    unattended    INTEGER NOT NULL DEFAULT 0 CHECK (unattended IN (0, 1)),
    scheduled     INTEGER NOT NULL DEFAULT 0 CHECK (scheduled IN (0, 1)),
    remote        INTEGER NOT NULL DEFAULT 0 CHECK (remote IN (0, 1)),
    max_parallel  INTEGER CHECK (max_parallel IS NULL OR max_parallel >= 1),
    last_claimed  INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL CHECK (created_at >= 0),
    archived_at   INTEGER
) STRICT;

CREATE UNIQUE INDEX one_project_per_name ON projects (name) WHERE archived_at IS NULL;
CREATE UNIQUE INDEX one_project_per_checkout ON projects (checkout) WHERE archived_at IS NULL;

CREATE TABLE threads (
    ordinal     INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE CHECK (id GLOB 'thr-????????'),
    project     INTEGER REFERENCES projects (ordinal),
    title       TEXT    NOT NULL,
    created_at  INTEGER NOT NULL CHECK (created_at >= 0),
    closed_at   INTEGER
) STRICT;

CREATE TABLE profiles (
    ordinal       INTEGER PRIMARY KEY,
    kind          TEXT    NOT NULL CHECK (kind IN ('agent', 'policy')),
    id            TEXT    NOT NULL UNIQUE CHECK (
                      (kind = 'agent' AND id GLOB 'agt-????????')
                      OR (kind = 'policy' AND id GLOB 'pol-????????')),
    name          TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    version       INTEGER NOT NULL CHECK (version >= 1),
    body          TEXT    NOT NULL CHECK (json_valid(body)),
    max_parallel  INTEGER CHECK (max_parallel IS NULL OR max_parallel >= 1),
    updated_at    INTEGER NOT NULL CHECK (updated_at >= 0),
    UNIQUE (kind, name)
) STRICT;

CREATE TABLE tasks (
    ordinal     INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE CHECK (id GLOB 'tsk-????????'),
    title       TEXT    NOT NULL,
    origin      TEXT    NOT NULL,
    project     INTEGER REFERENCES projects (ordinal),
    thread      INTEGER REFERENCES threads (ordinal),
    agent       INTEGER REFERENCES profiles (ordinal),
    -- Who delegated it, and the top of the tree; none for a root.
    parent      INTEGER REFERENCES tasks (ordinal),
    parent_run  INTEGER REFERENCES runs (ordinal),
    root        INTEGER REFERENCES tasks (ordinal),
    depth       INTEGER NOT NULL CHECK (depth >= 0),
    turn        INTEGER,
    -- What was taken from the parent's budget for it.
    share       TEXT    CHECK (share IS NULL OR json_valid(share)),
    intent      TEXT    NOT NULL CHECK (length(intent) = 71),
    priority    INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    spec        TEXT    NOT NULL CHECK (json_valid(spec)),
    retry       TEXT    NOT NULL CHECK (json_valid(retry)),
    tally       TEXT    NOT NULL CHECK (json_valid(tally)),
    attempts    INTEGER NOT NULL CHECK (attempts >= 1),
    spent       TEXT    NOT NULL CHECK (json_valid(spent)),
    cancel_by   TEXT,
    cancel_at   INTEGER,
    state       TEXT    NOT NULL CHECK (state IN
                    ('open', 'completed', 'failed', 'dead_letter', 'cancelled')),
    run         INTEGER REFERENCES runs (ordinal),
    exhausted   TEXT    CHECK (exhausted IS NULL OR exhausted IN ('attempts', 'waits', 'spend')),
    created_at  INTEGER NOT NULL CHECK (created_at >= 0),
    updated_at  INTEGER NOT NULL CHECK (updated_at >= created_at),

    CHECK ((cancel_by IS NULL) = (cancel_at IS NULL)),
    CHECK ((parent IS NULL) = (depth = 0)),
    CHECK ((parent IS NULL) = (parent_run IS NULL)),
    CHECK ((parent IS NULL) = (root IS NULL)),
    CHECK ((parent IS NULL) = (share IS NULL)),
    -- Turns of a thread are tasks of persons and triggers; a child lives inside its parent's turn.
    CHECK (parent IS NULL OR thread IS NULL),
    CHECK ((state = 'dead_letter') = (exhausted IS NOT NULL)),
    CHECK (state <> 'completed' OR cancel_by IS NULL)
) STRICT;

CREATE INDEX tasks_of_parent ON tasks (parent_run) WHERE parent_run IS NOT NULL;
CREATE INDEX tasks_of_tree ON tasks (root) WHERE root IS NOT NULL;
CREATE INDEX open_tasks_of_thread ON tasks (thread, ordinal) WHERE state = 'open' AND thread IS NOT NULL;
CREATE INDEX tasks_of_project ON tasks (project, ordinal) WHERE project IS NOT NULL;

ALTER TABLE runs ADD COLUMN task INTEGER REFERENCES tasks (ordinal);
ALTER TABLE runs ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1);
ALTER TABLE runs ADD COLUMN retried_from INTEGER REFERENCES runs (ordinal);
ALTER TABLE runs ADD COLUMN project INTEGER REFERENCES projects (ordinal);
ALTER TABLE runs ADD COLUMN thread INTEGER REFERENCES threads (ordinal);
ALTER TABLE runs ADD COLUMN agent INTEGER REFERENCES profiles (ordinal);
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100);
ALTER TABLE runs ADD COLUMN due_at INTEGER CHECK (due_at IS NULL OR state = 'queued');

CREATE UNIQUE INDEX one_live_run_per_thread ON runs (thread)
    WHERE thread IS NOT NULL AND owner IS NOT NULL;
CREATE UNIQUE INDEX one_open_attempt_per_task ON runs (task)
    WHERE task IS NOT NULL AND verdict IS NULL;
CREATE UNIQUE INDEX attempts ON runs (task, attempt) WHERE task IS NOT NULL;
CREATE UNIQUE INDEX one_successor ON runs (retried_from) WHERE retried_from IS NOT NULL;
CREATE INDEX runs_due ON runs (due_at) WHERE state = 'queued' AND due_at IS NOT NULL;
CREATE INDEX runs_of_project ON runs (project, ordinal) WHERE project IS NOT NULL;

CREATE TRIGGER runs_keep_their_place BEFORE UPDATE ON runs
WHEN NEW.task IS NOT OLD.task OR NEW.attempt <> OLD.attempt
  OR NEW.retried_from IS NOT OLD.retried_from OR NEW.project IS NOT OLD.project
  OR NEW.thread IS NOT OLD.thread
BEGIN SELECT RAISE(ABORT, 'a run keeps its task and its place'); END;

CREATE TRIGGER tasks_are_not_deleted BEFORE DELETE ON tasks
BEGIN SELECT RAISE(ABORT, 'a task is never deleted'); END;

CREATE TRIGGER completed_tasks_never_change BEFORE UPDATE ON tasks
WHEN OLD.state = 'completed'
BEGIN SELECT RAISE(ABORT, 'a completed task never changes'); END;

-- Only a person's retry opens a task again; it has another attempt then.
CREATE TRIGGER tasks_open_again_with_a_new_attempt BEFORE UPDATE OF state ON tasks
WHEN OLD.state <> 'open' AND (NEW.state <> 'open' OR NEW.attempts <> OLD.attempts + 1)
BEGIN SELECT RAISE(ABORT, 'a task that is over opens again only with a new attempt'); END;

CREATE TRIGGER tasks_keep_their_identity BEFORE UPDATE ON tasks
WHEN NEW.ordinal <> OLD.ordinal OR NEW.id <> OLD.id OR NEW.parent IS NOT OLD.parent
  OR NEW.parent_run IS NOT OLD.parent_run OR NEW.root IS NOT OLD.root OR NEW.depth <> OLD.depth
  OR NEW.share IS NOT OLD.share OR NEW.thread IS NOT OLD.thread OR NEW.project IS NOT OLD.project
  OR NEW.attempts < OLD.attempts
BEGIN SELECT RAISE(ABORT, 'a task keeps its identity'); END;

CREATE TABLE approvals (
    ordinal     INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE CHECK (id GLOB 'apr-????????'),
    run         INTEGER NOT NULL REFERENCES runs (ordinal),
    ask         TEXT    NOT NULL,
    subject     TEXT    NOT NULL CHECK (json_valid(subject)),
    digest      TEXT    NOT NULL CHECK (length(digest) = 71),
    asked_by    TEXT    NOT NULL,
    asked_at    INTEGER NOT NULL CHECK (asked_at >= 0),
    expires_at  INTEGER NOT NULL CHECK (expires_at >= 0),
    state       TEXT    NOT NULL CHECK (state IN
                    ('pending', 'approved', 'rejected', 'consumed', 'expired', 'withdrawn')),
    decided_by  TEXT,
    decided_at  INTEGER,
    note        TEXT    NOT NULL DEFAULT '',
    closed_at   INTEGER,
    UNIQUE (run, ask),

    CHECK ((decided_by IS NULL) = (decided_at IS NULL)),
    CHECK (state NOT IN ('approved', 'rejected', 'consumed') OR decided_by IS NOT NULL),
    CHECK (state NOT IN ('pending', 'expired') OR decided_by IS NULL),
    CHECK ((closed_at IS NOT NULL) = (state IN ('consumed', 'expired', 'withdrawn'))),
    -- Only a person decides, and not the one who asked.
    CHECK (decided_by IS NULL OR decided_by LIKE 'person:%'),
    CHECK (decided_by IS NULL OR decided_by <> asked_by),
    CHECK (decided_at IS NULL OR decided_at < expires_at)
) STRICT;

CREATE UNIQUE INDEX one_question_at_a_time ON approvals (run) WHERE state = 'pending';
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE state = 'pending';

CREATE TRIGGER approvals_begin_pending BEFORE INSERT ON approvals
WHEN NEW.state <> 'pending'
  OR EXISTS (SELECT 1 FROM approvals WHERE id = NEW.id OR ordinal = NEW.ordinal)
BEGIN SELECT RAISE(ABORT, 'an approval begins pending'); END;

CREATE TRIGGER approvals_are_not_deleted BEFORE DELETE ON approvals
BEGIN SELECT RAISE(ABORT, 'an approval is never deleted'); END;

CREATE TRIGGER decisions_never_change BEFORE UPDATE ON approvals
WHEN NEW.ordinal <> OLD.ordinal OR NEW.id <> OLD.id OR NEW.run <> OLD.run OR NEW.ask <> OLD.ask
  OR NEW.digest <> OLD.digest OR NEW.subject <> OLD.subject OR NEW.asked_by <> OLD.asked_by
  OR (OLD.decided_by IS NOT NULL AND NEW.decided_by IS NOT OLD.decided_by)
  OR OLD.state IN ('rejected', 'consumed', 'expired', 'withdrawn')
  OR (OLD.state = 'pending' AND NEW.state = 'consumed')
  OR (OLD.state = 'approved' AND NEW.state NOT IN ('consumed', 'withdrawn'))
BEGIN SELECT RAISE(ABORT, 'a decision never changes'); END;

CREATE TABLE schedules (
    ordinal     INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE CHECK (id GLOB 'sch-????????'),
    project     INTEGER NOT NULL REFERENCES projects (ordinal),
    title       TEXT    NOT NULL,
    timing      TEXT    NOT NULL CHECK (json_valid(timing)),
    spec        TEXT    NOT NULL CHECK (json_valid(spec)),
    retry       TEXT    NOT NULL CHECK (json_valid(retry)),
    agent       INTEGER REFERENCES profiles (ordinal),
    priority    INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    enabled     INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    -- Slots up to here are dealt with.
    after_at    INTEGER NOT NULL CHECK (after_at >= 0),
    next_at     INTEGER,
    created_at  INTEGER NOT NULL CHECK (created_at >= 0)
) STRICT;

CREATE INDEX schedules_due ON schedules (next_at) WHERE enabled = 1 AND next_at IS NOT NULL;

CREATE TABLE slots (
    schedule  INTEGER NOT NULL REFERENCES schedules (ordinal),
    slot      INTEGER NOT NULL,
    outcome   TEXT    NOT NULL CHECK (outcome IN ('fired', 'missed', 'overlap', 'refused')),
    task      INTEGER REFERENCES tasks (ordinal),
    at        INTEGER NOT NULL,
    PRIMARY KEY (schedule, slot),
    CHECK ((outcome = 'fired') = (task IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE deliveries (
    source    TEXT    NOT NULL,
    delivery  TEXT    NOT NULL,
    object    TEXT,
    version   TEXT,
    task      INTEGER NOT NULL REFERENCES tasks (ordinal),
    at        INTEGER NOT NULL,
    PRIMARY KEY (source, delivery),
    CHECK ((object IS NULL) = (version IS NULL))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX one_delivery_per_version ON deliveries (source, object, version)
    WHERE object IS NOT NULL;

CREATE TABLE idempotency (
    scope  TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    body   TEXT    NOT NULL CHECK (length(body) = 71),
    task   INTEGER NOT NULL REFERENCES tasks (ordinal),
    at     INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- Files beside the database, named by their digest.
CREATE TABLE blobs (
    digest  TEXT    PRIMARY KEY CHECK (length(digest) = 71),
    bytes   INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT, WITHOUT ROWID;

ALTER TABLE records ADD COLUMN blob TEXT REFERENCES blobs (digest)
    CHECK (blob IS NULL OR body = '');

-- The log of a run that was over for long: its record stays.
CREATE TABLE compactions (
    run       INTEGER PRIMARY KEY REFERENCES runs (ordinal),
    at        INTEGER NOT NULL,
    events    INTEGER NOT NULL,
    last_id   INTEGER NOT NULL
) STRICT;

CREATE TRIGGER only_what_is_over_is_compacted BEFORE INSERT ON compactions
WHEN NOT EXISTS (SELECT 1 FROM records WHERE run = NEW.run)
  OR (SELECT verdict FROM runs WHERE ordinal = NEW.run) IS NULL
BEGIN SELECT RAISE(ABORT, 'only a run that is over is compacted'); END;

-- Events get ids that grow over the whole file and are never given twice.
DROP TRIGGER events_are_gapless;
DROP TRIGGER events_move_the_sequence;
DROP TRIGGER sequences_move_by_one;
DROP TRIGGER events_are_not_changed;
DROP TRIGGER events_are_not_deleted;

CREATE TABLE events_2 (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    run    INTEGER NOT NULL REFERENCES runs (ordinal),
    seq    INTEGER NOT NULL CHECK (seq >= 1),
    at     INTEGER NOT NULL CHECK (at >= 0),
    epoch  INTEGER,
    kind   TEXT    NOT NULL CHECK (kind IN ('transition', 'fact', 'stdout', 'stderr')),
    state  TEXT,
    body   ANY     NOT NULL,
    UNIQUE (run, seq),
    CHECK ((kind = 'transition') = (state IS NOT NULL)),
    CHECK (typeof(body) = CASE WHEN kind IN ('stdout', 'stderr') THEN 'blob' ELSE 'text' END)
) STRICT;

INSERT INTO events_2 (run, seq, at, epoch, kind, state, body)
    SELECT run, seq, at, epoch, kind, state, body FROM events ORDER BY rowid;

DROP TABLE events;
ALTER TABLE events_2 RENAME TO events;
CREATE INDEX facts ON events (run, seq) WHERE kind = 'fact';
CREATE INDEX transitions ON events (id) WHERE kind = 'transition';

CREATE TRIGGER events_are_gapless BEFORE INSERT ON events
WHEN NEW.seq IS NOT (SELECT last_seq + 1 FROM runs WHERE ordinal = NEW.run)
BEGIN SELECT RAISE(ABORT, 'an event takes the next number'); END;

CREATE TRIGGER events_move_the_sequence AFTER INSERT ON events
BEGIN UPDATE runs SET last_seq = NEW.seq WHERE ordinal = NEW.run; END;

CREATE TRIGGER sequences_move_by_one BEFORE UPDATE OF last_seq ON runs
WHEN NEW.last_seq NOT IN (OLD.last_seq, OLD.last_seq + 1)
  OR NEW.last_seq <> (SELECT coalesce(max(seq), 0) FROM events WHERE run = OLD.ordinal)
BEGIN SELECT RAISE(ABORT, 'a sequence moves by one event'); END;

CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'an event is never changed'); END;

CREATE TRIGGER events_go_only_by_compaction BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM compactions WHERE run = OLD.run AND last_id >= OLD.id)
BEGIN SELECT RAISE(ABORT, 'an event is never deleted'); END;
