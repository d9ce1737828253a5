def custom_kernel(data):
    a, b, output = data
    output[...] = a + b
    return output
