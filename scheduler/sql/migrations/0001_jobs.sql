-- The table of jobs: the truth. Everything a worker remembers is a cache of it.
--
-- No column has a time as its default: a default binds now() when the table is created, and every statement
-- here names its own. Identities are UUIDs drawn by the client, so that a repeated insert is recognised.
CREATE TABLE scheduler_jobs (
    job_id           uuid PRIMARY KEY,
    task             text NOT NULL,
    payload          jsonb NOT NULL,
    run_at           timestamptz NOT NULL,
    state            text NOT NULL
        CHECK (state IN ('PENDING', 'CLAIMED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    attempt          integer NOT NULL CHECK (attempt >= 0),
    max_attempts     integer NOT NULL CHECK (max_attempts >= 1),
    expires_at       timestamptz,
    lease_owner      text,
    -- The fencing token: one more at every claim, never reset, not even when an operator replays the job.
    lease_token      bigint NOT NULL CHECK (lease_token >= 0),
    lease_expires_at timestamptz,
    idempotency_key  text UNIQUE,
    cancel_requested boolean NOT NULL,
    last_error       text,
    created_at       timestamptz NOT NULL,
    finished_at      timestamptz,
    CONSTRAINT a_lease_has_owner_and_expiry CHECK (
        (state IN ('CLAIMED', 'RUNNING')) = (lease_owner IS NOT NULL)
        AND (lease_owner IS NULL) = (lease_expires_at IS NULL)
    ),
    CONSTRAINT the_end_has_a_time CHECK (
        (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')) = (finished_at IS NOT NULL)
    )
);

-- What is due, in the order of claiming. Partial: a million finished rows cost the claim nothing.
CREATE INDEX scheduler_jobs_due ON scheduler_jobs (run_at, job_id) WHERE state = 'PENDING';

-- What is leased, in the order of expiry, for the sweep.
CREATE INDEX scheduler_jobs_leased ON scheduler_jobs (lease_expires_at, job_id)
    WHERE state IN ('CLAIMED', 'RUNNING');

-- What will age out before it is claimed, for the sweep. Holds only jobs with an age limit.
CREATE INDEX scheduler_jobs_ageing ON scheduler_jobs (expires_at, job_id)
    WHERE state = 'PENDING' AND expires_at IS NOT NULL;
