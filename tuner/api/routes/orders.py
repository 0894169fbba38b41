"""The route of orders: a path over a small grid of tiles, and its cache traffic."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.service import Service
from tuner.wire.responses.orders import OrdersQuery, OrdersView


def order_routes(_: Service) -> APIRouter:
    """Returns the route. Its response depends only on the request, so the service is not used."""
    router = APIRouter(tags=["orders"], responses=PROBLEM_RESPONSES)

    @router.get("/orders")
    def follow_order(query: Annotated[OrdersQuery, Query()]) -> OrdersView:
        """Each step of a drawn or standard order with the contents of the cache, compared with other orders and the
        optimum."""
        return OrdersView.of(query)

    return router
