"""Data: who holds which columns of which rows, and where the known data sets come from."""

from securevfl.data.catalog import CatalogEntry, Listing, get, listing, names, where
from securevfl.data.join import OwnData, load_files
from securevfl.data.partition import BatchSchedule, fixed_partition
from securevfl.data.read import FileSource, PartyRows, read_party
from securevfl.data.scaling import Scaling
from securevfl.data.sources import load
from securevfl.data.tables import PartyTable, VerticalDataset, check, fingerprint, row_digests

__all__ = [
    "BatchSchedule",
    "CatalogEntry",
    "FileSource",
    "Listing",
    "OwnData",
    "PartyRows",
    "PartyTable",
    "Scaling",
    "VerticalDataset",
    "check",
    "fingerprint",
    "fixed_partition",
    "get",
    "listing",
    "load",
    "load_files",
    "names",
    "read_party",
    "row_digests",
    "where",
]
