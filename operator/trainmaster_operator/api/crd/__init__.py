"""The CustomResourceDefinition: its schema, its rules and its columns."""
