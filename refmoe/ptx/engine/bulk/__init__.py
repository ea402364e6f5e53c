"""Bulk copies (`cp.async.bulk`) and tensor maps."""
