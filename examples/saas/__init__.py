"""A service whose tenants choose when they get a report."""
