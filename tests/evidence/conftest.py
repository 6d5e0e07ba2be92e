from report_builder import two_audits

__all__ = ["two_audits"]
