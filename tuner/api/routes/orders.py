"""The route of orders: a path over a small grid of tiles, and its effect on a cache."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.responses.orders import OrdersQuery, OrdersView


def order_routes(_: Service) -> APIRouter:
    """Does not use the service: the response is computed from the request alone."""
    router = APIRouter(tags=["orders"], responses=PROBLEM_RESPONSES)

    @router.get("/orders")
    def follow_order(query: Annotated[OrdersQuery, Query()]) -> OrdersView:
        """Each step of an order, drawn or standard, with the contents of the cache; other orders and the optimum for
        comparison."""
        return OrdersView.of(query)

    return router
