"""The report: all that is known of a quantized model beside its float one, in one HTML file that needs no network."""
