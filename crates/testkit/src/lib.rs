//! Scripted model server and other test tools. Never shipped.
