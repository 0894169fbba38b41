"""Epilogue parts."""
