"""Tests of django_finoflow. ``python -m tests`` runs them on every database that can be reached."""
