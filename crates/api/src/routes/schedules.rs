//! Schedules: tasks that the clock makes, in projects whose operator lets it.

use cofferdam_daemon::HostError;
use cofferdam_ledger::store::triggers::{Schedule, Slot, SlotOutcome};
use cofferdam_run::schedule::Timing;
use cofferdam_run::{ScheduleId, TimestampMs};

use super::{page, paged};
use crate::endpoint::{Call, Nothing};
use crate::problem::Problem;
use crate::types::{
    EnableSchedule, ListThreads, NewSchedule, ScheduleDetail, ScheduleList, ScheduleView, SlotView,
};

/// Slots shown of a schedule, newest first.
const SLOTS: u32 = 50;

fn view(schedule: Schedule) -> ScheduleView {
    ScheduleView {
        schedule: schedule.id,
        project: schedule.project,
        title: schedule.title,
        cron: schedule.timing.cron.to_string(),
        zone: schedule.timing.zone.as_str().to_owned(),
        missed: schedule.timing.missed,
        overlap: schedule.timing.overlap,
        enabled: schedule.enabled,
        next_at_ms: schedule.next_at,
        spec: schedule.spec,
    }
}

fn slot(slot: Slot) -> SlotView {
    let (outcome, task, reason) = match slot.outcome {
        SlotOutcome::Fired { task } => ("fired", Some(task), None),
        SlotOutcome::Missed => ("missed", None, None),
        SlotOutcome::Overlap => ("overlap", None, None),
        SlotOutcome::Refused(why) => ("refused", None, Some(why.to_string())),
    };
    SlotView { at_ms: slot.at, outcome: outcome.to_owned(), task, reason }
}

fn id(call: &Call<impl Sized, impl Sized>) -> Result<ScheduleId, Problem> {
    let text = call.part("schedule");
    text.parse().map_err(|_| Problem::no_such(format!("schedule {text}")))
}

pub(super) async fn list(call: Call<ListThreads>) -> Result<ScheduleList, Problem> {
    let part = page(call.query.before, call.query.limit)?;
    let found = call.service.host.durable().schedules(call.query.project.clone(), part).await?;
    let (schedules, next) = paged(found);
    Ok(ScheduleList { schedules: schedules.into_iter().map(view).collect(), next })
}

pub(super) async fn create(call: Call<Nothing, NewSchedule>) -> Result<ScheduleView, Problem> {
    let new = &call.body;
    let host = &call.service.host;
    let project = host.durable().project(&new.project).await?;
    let mut wish = new.wish.clone();
    // A schedule works on its project's checkout and no other.
    wish.checkout = project.checkout;
    let value = |name: &str| (call.service.environment)(name);
    let checked = host.check(wish.request(host.config().clone(), &value)?).await?;
    let mut entropy = [0u8; 5];
    getrandom::fill(&mut entropy).map_err(|e| HostError::Internal(e.to_string()))?;
    let timing = Timing {
        cron: new.cron.parse().map_err(Problem::malformed)?,
        zone: new.zone.parse().map_err(Problem::malformed)?,
        missed: new.missed,
        overlap: new.overlap,
    };
    let schedule = Schedule {
        id: ScheduleId::from_entropy(entropy),
        project: new.project.clone(),
        title: new.title.clone().unwrap_or_else(|| checked.title()),
        timing,
        spec: checked.spec().clone(),
        retry: Default::default(),
        agent: None,
        priority: 0,
        // Off until somebody switches it on.
        enabled: false,
        created_at: call.now(),
        next_at: None::<TimestampMs>,
    };
    Ok(view(host.durable().create_schedule(schedule).await?))
}

pub(super) async fn one(call: Call) -> Result<ScheduleDetail, Problem> {
    let id = id(&call)?;
    let durable = call.service.host.durable();
    let schedule = view(durable.schedule(&id).await?);
    let slots = durable.slots(&id, SLOTS).await?.into_iter().map(slot).collect();
    Ok(ScheduleDetail { schedule, slots })
}

pub(super) async fn enable(call: Call<Nothing, EnableSchedule>) -> Result<ScheduleView, Problem> {
    let id = id(&call)?;
    let durable = call.service.host.durable();
    let schedule = durable.enable_schedule(&id, call.body.enabled, call.now()).await?;
    call.service.changed.notify_one();
    Ok(view(schedule))
}
