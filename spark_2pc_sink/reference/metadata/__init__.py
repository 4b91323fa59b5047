"""The cluster as the node knows it: topics, ACLs, ids, and the directory that holds them."""
