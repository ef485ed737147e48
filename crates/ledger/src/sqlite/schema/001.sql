-- Format 1. Never edited after release: a change is a new file.
--
-- Rules that the code keeps are repeated here, so that neither a mistake in the code nor SQL typed
-- by hand can break them.

CREATE TABLE meta (
    only_row     INTEGER PRIMARY KEY CHECK (only_row = 1),
    instance_id  TEXT NOT NULL CHECK (length(instance_id) = 16)
) STRICT;

CREATE TABLE runs (
    ordinal           INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL UNIQUE CHECK (length(id) = 8),
    title             TEXT    NOT NULL,
    checkout          TEXT    NOT NULL,
    mode              TEXT    NOT NULL CHECK (mode IN ('unattended', 'supervised')),
    state             TEXT    NOT NULL CHECK (state IN (
                          'queued', 'preparing', 'planning', 'executing', 'awaiting_approval',
                          'paused', 'collecting', 'completed', 'failed', 'dead_letter', 'cancelled')),
    state_json        TEXT    NOT NULL CHECK (json_valid(state_json)),
    created_at        INTEGER NOT NULL CHECK (created_at >= 0),
    updated_at        INTEGER NOT NULL CHECK (updated_at >= created_at),
    cancel_by         TEXT,
    cancel_at         INTEGER,
    owner             TEXT,
    epoch             INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    lease_expires     INTEGER,
    last_seq          INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    output_budget     INTEGER NOT NULL CHECK (output_budget >= 0),
    output_bytes      INTEGER NOT NULL DEFAULT 0,
    output_chunks     INTEGER NOT NULL DEFAULT 0,
    output_cut        INTEGER NOT NULL DEFAULT 0,
    repeatable_count  INTEGER NOT NULL DEFAULT 0,
    repeatable_bytes  INTEGER NOT NULL DEFAULT 0,
    single_count      INTEGER NOT NULL DEFAULT 0,
    single_bytes      INTEGER NOT NULL DEFAULT 0,
    spend             TEXT    NOT NULL CHECK (json_valid(spend)),
    commits           INTEGER,
    reference         TEXT,
    verdict           TEXT    CHECK (verdict IS NULL OR json_valid(verdict)),

    CHECK ((cancel_by IS NULL) = (cancel_at IS NULL)),
    CHECK ((owner IS NULL) = (lease_expires IS NULL)),
    -- A run is held exactly while somebody must work on it, and then under an epoch.
    CHECK ((owner IS NOT NULL) = (state IN (
        'preparing', 'planning', 'executing', 'awaiting_approval', 'paused', 'collecting'))),
    CHECK (owner IS NULL OR epoch >= 1),
    CHECK (state <> 'queued' OR epoch = 0),
    -- A run is judged exactly when it is over.
    CHECK ((verdict IS NOT NULL) = (state IN ('completed', 'failed', 'dead_letter', 'cancelled'))),
    -- Nobody is there to wait for.
    CHECK (mode = 'supervised' OR state NOT IN ('awaiting_approval', 'paused')),
    -- A wish to cancel never ends in success.
    CHECK (state <> 'completed' OR cancel_by IS NULL)
) STRICT;

CREATE INDEX runs_by_lease ON runs (lease_expires) WHERE owner IS NOT NULL;
CREATE INDEX runs_queued ON runs (ordinal) WHERE state = 'queued';

-- Apart from `runs`, whose rows are rewritten with every event, while a specification may be long.
CREATE TABLE specs (
    run   INTEGER PRIMARY KEY REFERENCES runs (ordinal),
    body  TEXT NOT NULL CHECK (json_valid(body))
) STRICT;

CREATE TABLE events (
    run    INTEGER NOT NULL REFERENCES runs (ordinal),
    seq    INTEGER NOT NULL CHECK (seq >= 1),
    at     INTEGER NOT NULL CHECK (at >= 0),
    epoch  INTEGER,
    kind   TEXT    NOT NULL CHECK (kind IN ('transition', 'fact', 'stdout', 'stderr')),
    state  TEXT,
    body   ANY     NOT NULL,
    PRIMARY KEY (run, seq),
    CHECK ((kind = 'transition') = (state IS NOT NULL)),
    CHECK (typeof(body) = CASE WHEN kind IN ('stdout', 'stderr') THEN 'blob' ELSE 'text' END)
) STRICT;

CREATE INDEX facts ON events (run, seq) WHERE kind = 'fact';

CREATE TABLE counted_facts (
    run    INTEGER NOT NULL REFERENCES runs (ordinal),
    kind   TEXT    NOT NULL,
    count  INTEGER NOT NULL CHECK (count >= 1),
    PRIMARY KEY (run, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE records (
    run   INTEGER PRIMARY KEY REFERENCES runs (ordinal),
    head  TEXT NOT NULL CHECK (length(head) = 71),
    body  TEXT NOT NULL
) STRICT;

-- The first terminal write wins.
CREATE TRIGGER terminal_runs_never_change BEFORE UPDATE ON runs
WHEN OLD.state IN ('completed', 'failed', 'dead_letter', 'cancelled')
BEGIN SELECT RAISE(ABORT, 'a terminal run never changes'); END;

CREATE TRIGGER terminal_specs_never_change BEFORE UPDATE ON specs
WHEN NEW.run <> OLD.run
  OR (SELECT verdict FROM runs WHERE ordinal = OLD.run) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a terminal run never changes'); END;

CREATE TRIGGER specs_are_not_deleted BEFORE DELETE ON specs
BEGIN SELECT RAISE(ABORT, 'a specification is never deleted'); END;

CREATE TRIGGER specs_are_not_replaced BEFORE INSERT ON specs
WHEN EXISTS (SELECT 1 FROM specs WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'a specification is never replaced'); END;

CREATE TRIGGER runs_begin_queued BEFORE INSERT ON runs
WHEN NEW.state <> 'queued' OR NEW.last_seq <> 0
BEGIN SELECT RAISE(ABORT, 'a run begins queued'); END;

-- Also against INSERT OR REPLACE, which runs no delete trigger.
CREATE TRIGGER runs_are_not_replaced BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE id = NEW.id OR ordinal = NEW.ordinal)
BEGIN SELECT RAISE(ABORT, 'a run is never replaced'); END;

CREATE TRIGGER runs_are_not_deleted BEFORE DELETE ON runs
BEGIN SELECT RAISE(ABORT, 'a run is never deleted'); END;

CREATE TRIGGER runs_keep_their_identity BEFORE UPDATE ON runs
WHEN NEW.ordinal <> OLD.ordinal OR NEW.id <> OLD.id OR NEW.created_at <> OLD.created_at
  OR NEW.mode <> OLD.mode OR NEW.epoch < OLD.epoch
  OR (OLD.cancel_by IS NOT NULL AND NEW.cancel_by IS NULL)
BEGIN SELECT RAISE(ABORT, 'identity, mode, epoch and a wish to cancel never go back'); END;

CREATE TRIGGER terminal_runs_have_a_record BEFORE UPDATE OF state ON runs
WHEN NEW.state IN ('completed', 'failed', 'dead_letter', 'cancelled')
 AND NOT EXISTS (SELECT 1 FROM records WHERE run = OLD.ordinal)
BEGIN SELECT RAISE(ABORT, 'a run ends together with its record'); END;

-- Sequences have no gaps: the only number that fits is the next one.
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

CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'an event is never deleted'); END;

CREATE TRIGGER records_are_not_changed BEFORE UPDATE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never changed'); END;

CREATE TRIGGER records_are_not_deleted BEFORE DELETE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never deleted'); END;

CREATE TRIGGER records_are_not_replaced BEFORE INSERT ON records
WHEN EXISTS (SELECT 1 FROM records WHERE run = NEW.run)
BEGIN SELECT RAISE(ABORT, 'a record is never replaced'); END;
