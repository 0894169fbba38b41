"""The route of orders: a path over a small grid of tiles, and what a cache makes of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.responses.orders import OrdersQuery, OrdersView


def order_routes(_: Service) -> APIRouter:
    """Asks nothing of the service: the answer is computed from the question alone."""
    router = APIRouter(tags=["orders"], responses=PROBLEM_RESPONSES)

    @router.get("/orders")
    def follow_order(query: Annotated[OrdersQuery, Query()]) -> OrdersView:
        """Each step of an order, drawn or standard, with what the cache holds; other orders and the optimum beside."""
        return OrdersView.of(query)

    return router
