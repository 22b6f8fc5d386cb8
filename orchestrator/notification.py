"""Notifications: people are told when a run waits for them."""

from __future__ import annotations

from orchestrator.runtime.notification.channel import (
    CommandChannel,
    FunctionChannel,
    NotificationChannel,
    Webhook,
    verify_webhook,
)
from orchestrator.runtime.notification.notice import Notice
from orchestrator.runtime.notification.notifier import Notifier

__all__ = [
    "CommandChannel",
    "FunctionChannel",
    "Notice",
    "NotificationChannel",
    "Notifier",
    "Webhook",
    "verify_webhook",
]
