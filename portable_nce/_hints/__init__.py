"""Messages for calls that do not fit, and for names of other libraries; read only for an error."""
