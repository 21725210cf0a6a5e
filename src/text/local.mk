# text
