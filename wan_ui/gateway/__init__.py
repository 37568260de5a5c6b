"""Who may send what: every request passes here before anything else sees it."""
