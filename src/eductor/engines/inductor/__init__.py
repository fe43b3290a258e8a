"""The engine `inductor`: torch's code generator behind Eductor's own passes."""
