"""Generates pages of docs/, and checks links, anchors and the navigation without the program that builds the site."""
