//! Facts about the policy room: tables of inputs with their expected readings, and properties.

mod authority;
mod destination;
mod properties;
mod rules;
mod services;
