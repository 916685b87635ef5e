"""How the bundled network, images and prepared state were made; not part of the package."""
