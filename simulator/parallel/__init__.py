"""The mesh, its rank groups, and where ranks lie on the fabric."""
