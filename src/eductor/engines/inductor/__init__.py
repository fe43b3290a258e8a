"""The engine `inductor`: torch's code generator after Eductor's passes."""
