"""The executable specification of hocket: reference model of scheduler and runner, and of packed prefill."""
