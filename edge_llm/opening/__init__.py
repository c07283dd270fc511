"""How a model is opened on this machine: what it takes is planned first, then the plan is carried out."""
