"""Services that all views share: the caller and their rights, files of jobs, progress of jobs, and change notifications."""
