# vocab
