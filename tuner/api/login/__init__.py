"""How somebody says who he is: by a token's form, or by a proxy that has asked him."""
