"""The view of the models: what is here, what each needs, and how it is fetched."""

from wan_ui.models.handlers import ModelsHandlers
from wan_ui.models.panel import build_models_panel
from wan_ui.view import Shell, View


def build_models(shell: Shell) -> ModelsHandlers:
    """The panel with its handlers."""
    return ModelsHandlers(desk=shell.desk, form=shell.form, panel=build_models_panel(), message=shell.message)


MODELS = View(key="models", title="view_models", build=build_models)
