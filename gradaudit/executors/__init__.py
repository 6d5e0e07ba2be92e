"""Workers that share the work, by joblib; and what ends it early."""
