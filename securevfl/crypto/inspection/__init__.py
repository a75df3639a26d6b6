"""What a party can compute from ciphertexts with what it holds: for the audit, never for protocols.

One module a scheme; they alone read private parts of a scheme's classes. The attacks that draw
conclusions from these numbers are in securevfl.attacks.
"""
