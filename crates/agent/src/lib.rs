//! The built-in agent (model loop, tools, plan) and drivers that start other agents.
