"""Notifications: people are told when a run waits for them."""

from __future__ import annotations

from orchestrator.runtime.notification import (
    CommandChannel,
    FunctionChannel,
    Notice,
    NotificationChannel,
    Notifier,
    Webhook,
    verify_webhook,
)

__all__ = [
    "CommandChannel",
    "FunctionChannel",
    "Notice",
    "NotificationChannel",
    "Notifier",
    "Webhook",
    "verify_webhook",
]
