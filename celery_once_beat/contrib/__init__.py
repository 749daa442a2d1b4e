"""For other packages: one module a package, which has to be installed beside this one."""
