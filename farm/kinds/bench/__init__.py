"""Kind `bench`: time a model on phones until its median is known, with a certificate and a verdict."""
