"""The explanation server: ``cortx serve``. Its libraries are the extra ``serve`` and are imported when it starts."""
