"""Check every HTTP request before Gradio or the studio's routes receive it: host, origin, rules, logins and limits."""
