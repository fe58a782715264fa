"""Captions and references of five images, as PTB tokens."""

CANDIDATES = ["a man riding a horse", "two dogs in the snow", "a cat", "", "a bus is parked now"]
REFERENCES = [
    ["a man rides a brown horse", "the man is on a horse", "a person riding a horse"],
    ["two dogs play in the snow", "a pair of dogs running through snow"],
    ["a red bus on a street", "the bus is parked", "a bus"],
    ["a plate of food", "food on a table"],
    ["a bus is parked now"],
]
NAMES = [str(index) for index in range(len(CANDIDATES))]
