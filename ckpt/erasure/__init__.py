"""How bytes survive: Cauchy Reed-Solomon over GF(2^8), through ISA-L where it can be found."""
