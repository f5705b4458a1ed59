-- The audit: every change of every job, as the database itself saw it, in the order it happened.
--
-- The trigger runs while the changing transaction holds the row's lock, and the next writer of the same row has to
-- wait for that transaction's end. So for one job the numbers of the sequence rise in the order of its changes; between
-- jobs they say nothing. A transaction that is rolled back, or lost with the server, takes its lines with it.
--
-- `at` is the moment of the change; `now_at` is what the statement took for now, which is the time that leases are
-- reckoned with. `writer` is a setting of the session, which each of the laboratory's processes has in its DSN:
-- the row alone could not tell a holder's write from a stranger's.
CREATE TABLE audit (
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL,
    now_at     timestamptz NOT NULL,
    writer     text NOT NULL,
    job_id     uuid NOT NULL,
    old_row    jsonb,
    new_row    jsonb
);

CREATE FUNCTION write_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD IS NOT DISTINCT FROM NEW THEN
        RETURN NULL;
    END IF;
    INSERT INTO audit (at, now_at, writer, job_id, old_row, new_row)
    VALUES (
        clock_timestamp(),
        now(),
        coalesce(current_setting('simlab.writer', true), ''),
        CASE TG_OP WHEN 'DELETE' THEN OLD.job_id ELSE NEW.job_id END,
        CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - 'payload' END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - 'payload' END
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER scheduler_jobs_audit
    AFTER INSERT OR UPDATE OR DELETE ON scheduler_jobs
    FOR EACH ROW EXECUTE FUNCTION write_audit();
